"""Is it a bad model or a bad harness: accounts, statistics, the convention sweep, and a verdict.

Rooms: `probe` a drafter run as it was not declared; `variants` what is tried, and what each would mean;
`material` the prompts, continuations and features that all variants share; `sweep` measures a variant;
`paired` compares two measurements; `accounts`, `statistics`, `templates` and `acceptance` collect evidence;
`rules` turns evidence into a verdict; `report` says it; `run` does all of it for a job.
"""
