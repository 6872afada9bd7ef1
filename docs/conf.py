"""Build the documentation: `tox -e docs`.

The source is the whole checkout and not only `docs/`, so that the READMEs are pages, too, and a link that leads
nowhere ends the build whichever page it is on.
"""

project = "Callboard"
copyright = "the authors of Callboard"

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks/README.md",
    "docs/**",
    "plugins/*/README.md",
]
# Sphinx walks through all folders that it is not told to leave out.
exclude_patterns = [".*", "build", "engine", "tests", "plugins/*/build", "plugins/*/callboard_*"]

myst_heading_anchors = 4  # links to headings are written as on the forges that show the pages unbuilt
html_theme = "furo"
html_title = project
html_copy_source = False
