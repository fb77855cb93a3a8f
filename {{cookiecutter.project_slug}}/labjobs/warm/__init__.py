"""Starts Python programs as forks of a process that has already imported the slow libraries.

`server` is that process; `client` asks it. A fork of a process with threads can hang, so a server
runs no code of the project, and ends if an imported library starts a thread. Without a server,
programs start cold: more slowly, but otherwise the same. Imports the standard library only.
"""
