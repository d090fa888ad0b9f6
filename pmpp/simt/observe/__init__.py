"""What watches a launch: counters, sanitizers, traces, and the roofline that follows from the counters.

Observers are plugged into a machine (machine/protocols.py); no other floor but `host` knows them.
"""
