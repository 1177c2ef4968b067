"""What a person sees of stored runs: figures, the report, the live page, the playground, notebooks, exports.

Figures.  A figure is a function from evidence to a drawing and a caption: which rows, which statistic, which marks.  A
table names every figure once, with its file in each study.  Shared steps: mean, spread and n over seeds at every point
(a band from five seeds on, single seeds below that), marks, scales, style and captions.  The images of a page are
cached under a digest of rows, figure, sources and libraries, so nothing is drawn twice.

Report.  One self-contained HTML page.  All numbers reach its script as one object, `sonde.show({…})`; the script draws
from that object and from the view that the reader chose, which is the hash of the page's address.

Live.  The report's page, served by the standard library's HTTP server.  A poller reads manifests and journals that
changed and sends patches as server-sent events; a page that lost the server continues from the last patch it has.
Slow parts (findings, audit, diagnoses) are computed in a thread.  Nothing is written to the store.

Playground.  One HTML page with an engine in plain JavaScript: float32 arrays, sums in double, the parameter names of
Sonde's models.  Browser tests compare its states, credits and gradients with PyTorch.

Exports.  One function per layout: tables, TensorBoard, Weights & Biases, MLflow, and the JSON layout of existing
plotting scripts, which is read as well.  A tool is imported when it is chosen.

Everything here reads rows and needs no torch; only what looks up studies does.
"""
