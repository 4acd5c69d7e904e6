"""Chat templates of Hugging Face tokenizers, rendered by what is added: messages in, token ids with their sources out.

    template = ChatTemplate.load(directory)
    prompt = template.open(messages)                                  # ids and spans of a whole conversation
    reply = template.split_reply(sampled_ids)                         # text, and whether it came to its own end
    more = template.delta(sampled_ids[-1], [tool_result])             # what a new message adds; cost independent of the history
    fork = template.extend(messages, known_pieces, num_new=1)         # delta, or a fork where the template rewrites what came before

Needs neither torch nor transformers.
"""

from penstock.chat.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID, write_byte_tokenizer
from penstock.chat.files import BUILTIN_TEMPLATES, builtin_template
from penstock.chat.pieces import Fork, Known, Piece, Rendered, Reply, Rewrite, shifted
from penstock.chat.template import ChatTemplate
from penstock.chat.tool_calls import ParsedReply, parse_tool_calls

__all__ = [
    "BOS_ID",
    "BUILTIN_TEMPLATES",
    "EOS_ID",
    "PAD_ID",
    "ChatTemplate",
    "Fork",
    "Known",
    "ParsedReply",
    "Piece",
    "Rendered",
    "Reply",
    "Rewrite",
    "builtin_template",
    "parse_tool_calls",
    "shifted",
    "write_byte_tokenizer",
]
