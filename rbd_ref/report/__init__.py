"""Runs compared on one HTML page: `python -m rbd_ref.report RUN [RUN ...] -o report.html`.

    page          what the page says, read from the folders of runs
    figures       where the curves, ticks and labels of a figure lie
    templates/    how it looks: HTML and SVG in Jinja2, the style sheet, the script

The page is one file that fetches nothing, so it can be kept beside the runs, sent to someone, or printed; the same
runs give the same page.
May import: runs.
"""
