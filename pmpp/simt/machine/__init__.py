"""The GPU that is imitated: lanes and masks, memory, one launch while it runs, and who takes turns.

It knows neither the kernel's source nor who watches: protocols.py says what can be plugged in.
"""
