"""A training script as a workload: it runs in this worker, and is timed between its steps.

The script owns the control flow. At the end of a step (`boundaries`), a hook answers the pending request
of the controller and waits for the next one (`service`); a request to run steps returns to the script
until they are done. The script therefore stays in the main thread, with its own state, and does nothing
while another variant is timed. Every variant has its own process.
"""
