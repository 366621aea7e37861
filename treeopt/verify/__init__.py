"""Path by path: does a tree step compute for every node what plain decoding computes on that node's path?"""
