"""python -m harness advise: run, trial by trial, what python -m analysis advise asks for, until its advice stands."""
