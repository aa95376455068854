"""Networks as functions of one flat vector theta: what is trained, apart from how.

    architectures   each network described once, as a function of layers; needs no library
    names           networks by name, and names that list layers; needs no library either
    product         the matrix product of all layers, by fused multiply-add
    elementary      exp and log from basic operations
    operations      what each layer computes, its gradient, and its arrays; convolution and normalisation go on
    layers          the operations as autograd's primitives: the definition of the gradient
    plan            the operations of a network one after the other, without a tape: what training runs
    networks        what others call: make, initialise, loss, loss_and_gradient, accuracy

A network is D numbers to the rest of the package. The backends torch and jax bring layers of their own for the same
descriptions. Nothing outside this folder imports autograd, and architectures does not either.
May import: spec, kernels.
"""
