"""Small experiments of papers, recomputed: what is printed, and what comes out.

    cosine.py     the worked example to Lemma 1 of Xu et al. 2020: which noise turns a query least
    functions.py  test functions of optimisation in the plane
    descent.py    ADADP, ADAL and DP-SGD on them, with given noise
    deviation.py  how far the noise leads each away from its own path without noise
    renyi.py      figure 1 of Yu et al. 2019: Renyi divergence under sampling, order by order
    gradients.py  ADADP as published on public data
    norms.py      figure 1 of Yu et al. 2018: norms of gradients while training converges
    timing.py     Table II of Xu et al. 2020: time of a step of every method
    keys.py       short names of what was measured
    plots.py      the figures; imported only by who draws, since matplotlib is slow to load

Nothing here is private or claims to be: where there are records, they are public.
"""
