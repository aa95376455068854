// Bytes: hexadecimal text, little-endian floats, SHA-256 and CRC-32, as golden vectors and journals need them.
//
// SHA-256 is the platform's own (crypto.subtle, in browsers and in Node). Tests: tests/test_explorable.py.

/** Bytes as hexadecimal digits. */
export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A word as eight digits. */
export function wordHex(word) {
  return word.toString(16).padStart(8, "0");
}

/** The bits of floats as hexadecimal digits, eight each, the highest first. */
export function floatsToHex(x) {
  return Array.from(new Uint32Array(x.buffer, x.byteOffset, x.length), wordHex).join("");
}

/** And back. */
export function hexToFloats(text) {
  const bits = Uint32Array.from({ length: text.length / 8 }, (_, i) => parseInt(text.slice(8 * i, 8 * i + 8), 16));
  return new Float32Array(bits.buffer);
}

/** Floats as bytes, the lowest first, whatever the order of this machine. */
export function littleEndian(x) {
  const view = new DataView(new ArrayBuffer(4 * x.length));
  x.forEach((value, j) => view.setFloat32(4 * j, value, true));
  return new Uint8Array(view.buffer);
}

/** SHA-256 of the given pieces of bytes one after the other. */
export async function sha256(...pieces) {
  const whole = new Uint8Array(pieces.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

/** The CRC-32 of zlib. */
export function crc32(bytes) {
  let c = 0xffffffff;
  for (const byte of bytes) c = TABLE[(c ^ byte) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}
