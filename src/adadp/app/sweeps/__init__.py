"""Many runs on an executor of ``concurrent.futures``: on this machine or on many.

executors.py   an executor from a text: ``processes:4``, ``dask:HOST:PORT``, or one of the user's own
processes.py   processes on this machine, of which one that dies takes nothing but its own run along
handing.py     runs handed to the workers of an executor, each at most once; how they end, and how they are stopped
shared.py      whether the workers see the folder and the files of the runs, before anything is charged
"""
