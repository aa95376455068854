"""Networks as functions of one flat vector theta: what is trained, apart from how.

    architectures   each network described once, as a function of layers; needs no library
    layers          the layers for autograd, with gradients whose bits do not depend on threads
    networks        what others call: make, initialise, loss, loss_and_gradient, accuracy

A network is D numbers to the rest of the package. The backends torch and jax bring layers of their own for the same
descriptions. Nothing outside this folder imports autograd, and architectures does not either.
May import: spec, kernels.
"""
