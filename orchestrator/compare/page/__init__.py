"""A comparison as one HTML page: a file that opens from disk, anywhere, with no network.

What always holds: every text from a run passes `orchestrator.text.printable` and jinja's escaping, or lies as JSON
in a block that no browser runs; the page's own scripts and styles are named by hash in its content security
policy and nothing else may run, load or be sent; what was left out to keep the file small is stated in it.
"""
