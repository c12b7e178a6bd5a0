"""Bytes and records that outlive a process: artifacts, bundles, trials, tables. No kernels, no compilers.

``artifacts`` holds compiled kernels by content, ``bundles`` maps a package's variants to them, ``trials`` and
``database`` hold every measurement ever made, ``tables`` the frozen choices that serving loads.
"""
