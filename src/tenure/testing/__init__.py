"""The public test kit: real servers, the contract suite, and what a store of your own needs to prove itself."""
