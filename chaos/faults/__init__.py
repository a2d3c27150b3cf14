"""What is done to the system, a module a place where it happens.

A fault is a function of the world. When it returns, everything runs again, and a person has done what the documentation
says of it, and nothing else. It raises ChaosError where the system has not behaved as documented meanwhile. What has
become of the data is looked at afterwards, of every fault in the same way.
"""
