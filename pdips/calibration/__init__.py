"""The smallest epsilon at which a stated accuracy is reached, from public facts
only.
"""
