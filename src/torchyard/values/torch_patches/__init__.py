"""Patches of torch's own C++ source for wasted writes that a sweep of operators has found.

native_source   find a function, and a call in it, in C++ text
candidates      from a finding to the edit of a source file
patched_build   compile and link the edited files against a build, without changing it
patched_wheel   the same against an installed release, in a library that takes precedence
checks          compare the patched library with the unchanged one
session         all of it, with a report
"""
