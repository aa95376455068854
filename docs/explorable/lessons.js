// Lessons: settings of the page that each show one thing, with the two sentences that say what to look at.
//
// Settings are those of page.js's controls; `speed` is in steps a second.
// Tests: tests/test_explorable.py, in a browser.

const PLAIN = { keep: false, family: "normal", memory: 0, noise: 0, seed: 0, eta: 0, tied: true };

/** eta is the learning rate's logarithm to base 2. */
export const LESSONS = [
  {
    title: "One random line",
    text:
      "Draw a random line through the point. Walk downhill along it. Then forget the line and draw another. With " +
      "two parameters and one direction, that is the whole method.",
    settings: { ...PLAIN, landscape: "bowl", D: 2, d: 1, eta: -1, speed: 2 },
  },
  {
    title: "Plane in space",
    text:
      "Three parameters, two directions: each step follows the part of the gradient that lies in a random plane. The " +
      "valley is narrow: a plane that runs along it leads far, one that cuts across it hardly anywhere.",
    settings: { ...PLAIN, landscape: "valley", D: 3, d: 2, speed: 4 },
  },
  {
    title: "200 dimensions",
    text:
      "In 200 dimensions, 4 random directions catch little of the gradient: each step is almost at right angles to " +
      "the way straight down. The cosine of that angle is about √(4/200) = 0.14, and that is enough to arrive.",
    settings: { ...PLAIN, landscape: "bowl", D: 200, d: 4, speed: 10 },
  },
  {
    title: "Keep the directions",
    text:
      "Fixed projection descent (FPD) draws its 32 directions once. It finds the lowest point that they can reach, " +
      "and there it stops: the cosine drops to zero. Switch to “redraw”: RBD goes on, with just as many directions.",
    settings: { ...PLAIN, landscape: "bowl", D: 200, d: 32, keep: true, speed: 20 },
  },
  {
    title: "Biased family",
    text:
      "The entries of this family are +0.5 or −1.5. Their mean is not zero, so all 32 directions lean the same way " +
      "and push together. At this rate the point is thrown out. Now choose “rademacher”: +1 or −1.",
    settings: { ...PLAIN, landscape: "bowl", D: 200, d: 32, family: "bernoulli-graphcore", speed: 4 },
  },
  {
    title: "Memory",
    text:
      "Gradients of small batches are mostly noise, and a few directions cannot average it out. Here a running " +
      "average of the gradients is projected instead, and still only 16 numbers travel. Set memory to 0 to see the " +
      "difference.",
    settings: { ...PLAIN, landscape: "bowl", D: 200, d: 16, noise: 2, memory: 0.9, eta: -2, speed: 60 },
  },
  {
    title: "Small network",
    text:
      "The same steps train a network of 16 hidden units to tell two moons apart, from batches of 16 points. It has " +
      "65 weights and sends 8 numbers a step, where SGD sends 65.",
    settings: { ...PLAIN, landscape: "network", D: 65, d: 8, eta: 2, speed: 60 },
  },
];

/** A rate to start with on each landscape, as `eta` above. */
export const RATES = { bowl: 0, valley: 0, rosenbrock: -3, network: 2 };
