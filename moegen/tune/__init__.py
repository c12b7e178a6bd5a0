"""Finds the fastest right pipeline for each token count and routing, and keeps the measurements that show it.

``inputs`` and ``routing`` make what is run, ``gate`` refuses wrong candidates, ``worker`` runs them where they may die,
``measure`` times them side by side, ``select`` turns trials into winners, ``session`` drives it all and ``freeze``
writes the table that serving loads.
"""
