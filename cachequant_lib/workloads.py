"""The texts that the experiments run on. Data only: nothing here is timed.

Token counts are those of GPT-2's own tokenizer; other tokenizers give others.
"""

__all__ = ["LONG_PROMPT", "SHORT_PROMPT"]

#: Eight tokens: the short profile, almost all decode (8 prompt tokens, 50 new ones).
SHORT_PROMPT = "The dream of artificial intelligence is older than"

#: 270 tokens: the long profile, mostly prefill (this passage, then 10 new tokens).
LONG_PROMPT = (
    "The word computer once meant a person. In the offices of astronomers and insurers, rows of men and "
    "women worked through long sums by hand, checked one another's columns, and sent the totals upstairs. "
    "Charles Babbage wanted a machine to do the same work without the mistakes, and although his engine "
    "was never finished, Ada Lovelace saw that a device which handles numbers by rule could also handle "
    "anything that numbers stand for. A hundred years passed before the parts were good enough. During "
    "the war, rooms full of valves broke ciphers and traced the paths of shells, and the people who wired "
    "them learned that the hard part was not the arithmetic but the instructions. The idea of keeping the "
    "instructions in the same memory as the data turned a calculator into a general machine, and it is "
    "still the plan of every processor sold today. Then the valves became transistors, the transistors "
    "shrank until thousands of millions fitted on a thumbnail, and the clock ran faster every year until "
    "heat put an end to that. Memory did not keep up. A modern core can multiply far more quickly than it "
    "can fetch the numbers to be multiplied, so it spends much of its life waiting. Whoever wants a "
    "program to run fast now asks first how many bytes it must move, and only then how much there is to "
    "compute. The rest of this story is about"
)
