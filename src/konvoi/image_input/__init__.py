"""Prepared pictures become micro-batches: cut, resized, uint8, decoded ahead in processes of their own.

pipeline.py           what a task asks: TrainInput, EvaluationInput
plan.py               which pictures, in which order
augment.py            which part of each
ahead.py              micro-batches are filled ahead, by processes
slots.py              what these share with their parent: memory for pixels, and messages
decoding_process.py   such a process
batches.py            micro-batches are filled, picture by picture
decode.py             bytes become pixels, the fast way (fast_jpeg.py) where there is one
"""
