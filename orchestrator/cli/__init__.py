"""The command line: parse, call, render. No logic, and no heavy import outside a command's body."""
