"""The panel under a cell: what a run does, rank by rank.

`picture` says what is to be seen, as plain JSON data; all that shows it is made from that: the widget
(`dashboard.js`, `dashboard.css`), static HTML, a terminal's table.
"""
