"""Run the steps of a plan: resume, schedule, execute, measure, record.

Start with `build`, which plans and runs a whole build; `runner` schedules its steps and `steps`
executes one.
"""
