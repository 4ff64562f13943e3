"""How far the verdict can be trusted: labelled continuations, and the error rates on them."""
