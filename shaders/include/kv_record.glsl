// Numbers of KV records (runtime/device/kv_record.h) to and from bits, exactly: no 16-bit number passes through a
// conversion of the device, which may round halves either way and flush small ones to zero.

// Halves, round to nearest even; beyond the largest: the largest.
uint HalfBits(float x) {
  const uint bits = floatBitsToUint(x);
  const uint magnitude = bits & 0x7fffffffu;
  // Below 2^-14 halves are multiples of 2^-24.
  const uint subnormal = uint(roundEven(min(uintBitsToFloat(magnitude) * 16777216.0, 1024.0)));
  const uint normal = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  return ((bits >> 16) & 0x8000u) | (magnitude < (113u << 23) ? subnormal : min(normal, 0x7bffu));
}

float HalfValue(uint bits) {
  const uint magnitude = bits & 0x7fffu;
  const float value =
      magnitude < 0x400u ? float(magnitude) / 16777216.0 : uintBitsToFloat((magnitude << 13) + (112u << 23));
  return (bits & 0x8000u) != 0 ? -value : value;
}

// E4M3: four bits of exponent, three of mantissa, no infinities. Beyond the largest (448): the largest.
uint Fp8Bits(float x) {
  const uint bits = floatBitsToUint(x);
  const uint magnitude = bits & 0x7fffffffu;
  // Below 2^-6 they are multiples of 2^-9.
  const uint subnormal = uint(roundEven(min(uintBitsToFloat(magnitude) * 512.0, 8.0)));
  const uint normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  return ((bits >> 24) & 0x80u) | (magnitude < (121u << 23) ? subnormal : min(normal, 0x7eu));
}

float Fp8Value(uint bits) {
  const uint magnitude = bits & 0x7fu;
  const float value = magnitude < 8u ? float(magnitude) / 512.0 : uintBitsToFloat((magnitude << 20) + (120u << 23));
  return (bits & 0x80u) != 0 ? -value : value;
}

// The lowest `n_bits` of a word as a two's complement number.
float SignedValue(uint word, uint n_bits) { return float(bitfieldExtract(int(word), 0, int(n_bits))); }

// Which scale of its row an element is multiplied with.
uint ScaleOfElement(uint type, uint i) { return type == KVRUN_KV_INT4 ? i / KVRUN_INT4_BLOCK : 0; }

bool HasScales(uint type) { return type != KVRUN_KV_F16 && type != KVRUN_KV_F32; }
