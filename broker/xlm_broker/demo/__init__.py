"""The demo: a sample game and two talking characters share one card, and a picture of how it went.

story (what the game does with its memory, pure) → game (60 fps loop) and npc (conversations)
→ record (everything that happened) → summary (pure), view (terminal), picture (timeline.png).
``run`` joins them; ``process`` starts the private broker.
"""
