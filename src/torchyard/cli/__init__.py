"""The command line: one file per command, loaded when asked for; the only room that prints or exits."""
