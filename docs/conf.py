"""How Sphinx makes the website; docs/build_site.py calls it."""

project = "Training jobs in PyTorch"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = project
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
highlight_language = "none"  # what commands print

myst_heading_anchors = 3
