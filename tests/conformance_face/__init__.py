"""vLLM's HTTP face, asked: one list of requests for any pair of engines, real or emulated.

    cases.py       the single requests, good and bad
    scenes.py      what takes several: hand-overs, faults, two turns, clients that leave
    normal.py      a reply without what differs from run to run
    sheet.py       all replies of one pair, field by field; two of them compared
    faults.py      from good transfer parameters to each bad kind
    documented.py  what vLLM answered, and the differences that stay

By hand, from the checkout:

    python -m tests.conformance_face ask --prefill URL --decode URL --json vllm.json
    python -m tests.conformance_face emulate --json emulator.json
    python -m tests.conformance_face compare vllm.json emulator.json --markdown report.md
"""
