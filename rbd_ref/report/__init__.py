"""Runs compared on one HTML page: `python -m rbd_ref.report RUNS [...] -o report.html`.

    records       the runs that there are, and what their files say
    groups        runs that differ by seed only, as one; sweeps of a setting
    page          what the page says
    figures       where the curves, ticks and labels of a figure lie
    texts         values as text
    export        the same figures as CSV and for TensorBoard
    templates/    how it looks: HTML and SVG in Jinja2, the style sheet, the script

The page is one file that fetches nothing, so it can be kept beside the runs, sent to someone, or printed; the same
runs give the same page. Figures are our own SVG, which is there without scripts and sharp on paper, where a canvas is
not. A page of a hundred runs has 450 kB and loads in 0.2 s, about what uPlot takes for as many curves.
May import: runs, models, data, spec.
"""
