"""Keeping K and V: within one request (``dense``) and across requests (``trie``)."""
