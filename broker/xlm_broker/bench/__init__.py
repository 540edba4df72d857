"""``xlm bench``: ours against stock llama.cpp, side by side on the same virtual GPU; docs/benchmarks.md says how.

cards      three modelled cards, scaled to this machine
grid       which cases there are
limit      the shortest step that rates and memory allow
statics    settings of stock llama.cpp, and the best of them for a budget
sweep      measures them
plans      our schedules, and the pure kinds of the paper
child      the measuring processes (xlm_engine.bench)
store      what was measured, kept and resumed
run        the whole thing
summary    ratios, means, who wins; table and picture
"""
