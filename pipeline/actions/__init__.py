"""What the workflows in .github/workflows call: GitHub, git, and untrusted input at the edges.

One module a noun. `workflow` is the job this process runs in, `github` the API, `git` the branch
that is published to; the others take part in one workflow each. No module here knows of devices.
"""
