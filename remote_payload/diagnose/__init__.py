"""Is it a bad model or a bad harness: accounts, statistics, the convention sweep, and a verdict.

Rooms: `probe` a drafter run as it was not declared; `variants` what is tried, `meanings` what each would mean;
`material` the prompts, continuations and features that all variants share; `sweep` measures a variant; `compared`
and `paired` lay two measurements side by side; `accounts`, `statistics`, `acceptance`, `evidence`, `engines` and
`templates` collect what else there is; `rules` turns it into a verdict, `document` writes it down; `subject` is a
drafter with all ways to run it; `run` does all of it for a job.
"""
