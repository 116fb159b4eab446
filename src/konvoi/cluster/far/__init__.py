"""What runs on a host: each file here is sent there as it is, when it is first asked for (see cluster/session.py).

So a file imports the standard library alone, also of Python 3.8, nothing of Konvoi, and not its neighbours. Its public
functions are what can be asked: arguments and results are JSON; `payload: bytes` takes bytes, a result of bytes returns
them, and a generator's values arrive one by one.
"""
