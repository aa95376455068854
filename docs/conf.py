"""The site: Sphinx reads docs/, runs the chapters of docs/tutorial/, and writes HTML that needs no other host.

`make docs` builds it, with warnings as errors. What is particular stands in three files beside this one:
source_pages.py (links that leave docs/ become pages of highlighted source), docstrings.py (docstrings as reST) and
check_site.py (looks at the result: links, anchors, other hosts).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import markdown_it.main
import sphinx.util.inspect

import rbd_ref

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

project = "rbd-ref"
author = "the authors of rbd-ref"
version = release = rbd_ref.__version__
html_title = "rbd-ref"
html_show_copyright = False

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
    "source_pages",
    "docstrings",
]
exclude_patterns = ["_build", "explorable"]
language = "en"
highlight_language = "text"  # of blocks without a language: formulas and output are no Python
suppress_warnings = ["mystnb.unknown_mime_type"]

# Pages are MyST Markdown that GitHub shows as well: anchors are GitHub's, mathematics is between dollars.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
# CommonMark's parser drops what is nested more than ten lists deep, without a word: the walk of architecture.md is.
markdown_it.main._PRESETS["commonmark"]["options"]["maxNesting"] = 200


def code_digest() -> str:
    """A name for what the chapters run: results are kept only as long as none of it changes."""
    sources = sorted(
        [*(ROOT / "rbd_ref").rglob("*.py"), *(ROOT / "backends").rglob("*.py"), *HERE.glob("tutorial/*.py")]
    )
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def private_profile() -> str:
    """A folder for IPython in which nobody's own settings are; a kernel there is silent but for errors."""
    profile = HERE / "_build" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40\n")
    return str(profile.parent)


os.environ["IPYTHONDIR"] = private_profile()
nb_execution_mode = "cache"
RESULTS = HERE / "_build" / "notebooks"
nb_execution_cache_path = str(RESULTS / code_digest())
for earlier in set(RESULTS.glob("*")) - {Path(nb_execution_cache_path)}:
    shutil.rmtree(earlier)  # results of code that has changed since
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_execution_show_tb = True
nb_code_prompt_show = "Solution"  # cells that are hidden are solutions of exercises
nb_code_prompt_hide = "Hide the solution"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
ALIASES = ("ArrayLike", "Float32Array", "Float64Array", "Indices", "Words", "Bytes", "Shape", "Tensor", "Array")
autodoc_type_aliases = {name: name for name in ALIASES}  # shown by their names, not by what they stand for
sphinx.util.inspect.TypeAliasForwardRef.__repr__ = lambda alias: alias.name  # within unions too
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
default_role = "code"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
