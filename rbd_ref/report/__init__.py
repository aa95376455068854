"""Runs compared on one HTML page: `python -m rbd_ref.report RUNS [...] -o report.html`.

    records       the runs that there are, and what their files say
    groups        runs that differ by seed only, as one; sweeps of a setting
    page          what the page says
    figures       where the curves, ticks and labels of a figure lie
    texts         values as text
    export        the same figures as CSV and for TensorBoard
    templates/    how it looks: HTML and SVG in Jinja2, the style sheet, the script

The page is one file that fetches nothing, so it can be kept beside the runs, sent to someone, or printed; the same
runs give the same page. Figures are our own SVG: they are there without scripts and on paper, which no charting library
on a canvas is, and a page of a hundred runs has half a megabyte.
May import: runs, models, data, spec.
"""
