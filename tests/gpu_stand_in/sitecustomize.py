"""Makes Python's torch see GPUs that are not there; see stand_in/__init__.py.

Python imports a module of this name when it starts, from a folder on PYTHONPATH too.
Source: docs.python.org/3/library/site.html.
"""

import stand_in

stand_in.install()
