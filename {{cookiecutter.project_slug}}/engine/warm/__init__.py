"""Starts Python programs as forks of a process that has imported already what is slow to import.

`server` is that process; `client` asks it. A fork of a process with threads can hang, so a server
runs nothing of a project's, and ends where an imported library starts a thread. Without a server
programs start cold: slower, and otherwise the same. Imports the standard library only.
"""
