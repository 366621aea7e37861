"""A running plan against fresh metrics: is it active, does it accept what was planned, what does keeping it cost?"""
