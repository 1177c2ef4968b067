"""Every metric once more, as its definition reads: what stored values are checked against.

One sample at a time, in float64, with plain sums, from the tensors an ended run stores.  Nothing here is shared with
the probes and the rules that measured them.
"""
