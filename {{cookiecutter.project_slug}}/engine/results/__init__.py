"""Tables, statistics and figures of finished jobs. The only package that imports pandas, SciPy
and matplotlib; may import cli, job and tracking.
"""
