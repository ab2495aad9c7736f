/* Outstanding operations and global memory. */

/* ---- outstanding operations */

static void refresh(Wave *w) {
  memset(w->busy, 0, sizeof w->busy);
  for (int c = 0; c < 2; c++)
    for (int k = 0; k < w->length[c]; k++) {
      const u64 *set = w->queue[c][(w->head[c] + k) % RING].set;
      for (int j = 0; j < SET_WORDS; j++) w->busy[j] |= set[j];
    }
  watch_again(w);
}
static int unordered(const Wave *w, int c) {
  for (int k = 0; k < w->length[c]; k++)
    if (w->queue[c][(w->head[c] + k) % RING].tag & (TAG_SMEM | TAG_FLAT)) return 1;
  return 0;
}
static void land(Machine *m, const Wave *w, const Pending *e);
static void drop(Machine *m, Wave *w, int c, int count) {
  for (int k = 0; k < count; k++) {
    const Pending *e = &w->queue[c][(w->head[c] + k) % RING];
    if (e->tag == TAG_DMA) land(m, w, e);
  }
  w->head[c] = (w->head[c] + count) % RING; w->length[c] -= count; }
static Pending *append(Wave *w, int c, int tag) {
  if (w->length[c] >= RING) return 0;
  Pending *e = &w->queue[c][(w->head[c] + w->length[c]++) % RING];
  memset(e->set, 0, sizeof e->set);
  e->tag = tag;
  e->count = 0;
  return e;
}
/* an operation that will write the instruction's targets (none for stores) is on its way */
static int issue(Machine *m, Wave *w, const Ins *i, int c, int tag, int writes) {
  if (!m->check_waits) return 0;
  Pending *e = append(w, c, tag);
  if (!e) return REFUSED;
  if (writes) for (int j = 0; j < SET_WORDS; j++) {
    e->set[j] = i->writes[j];
    w->busy[j] |= e->set[j];
    w->watch[j] |= e->set[j];
  }
  /* a counter that is full holds an operation back until the oldest has returned */
  if (w->length[c] > (c ? 15 : 63) && !unordered(w, c)) { drop(m, w, c, 1); refresh(w); }
  return 0;
}
static void wait_for(Machine *m, Wave *w, int vm, int lgkm) {
  if (vm >= 0 && w->length[0] > vm) drop(m, w, 0, w->length[0] - vm);
  if (lgkm == 0) drop(m, w, 1, w->length[1]);
  else if (lgkm > 0 && w->length[1] > lgkm && !unordered(w, 1)) drop(m, w, 1, w->length[1] - lgkm);
  refresh(w);
}
static int hazard(const Wave *w, const Ins *i) {
  for (int c = 0; c < 2; c++)
    for (int k = 0; k < w->length[c]; k++) {
      const Pending *e = &w->queue[c][(w->head[c] + k) % RING];
      const u64 *touched = i->order == c + 1 && !(e->tag & (TAG_SMEM | TAG_FLAT)) ? i->reads : i->both;
      for (int j = 0; j < SET_WORDS; j++) if (e->set[j] & touched[j]) return HAZARD;
    }
  return 0;
}

/* ---- global memory */

static Buffer *find(Machine *m, u64 low, u64 high) {
  Buffer *b = &m->buffers[m->last_buffer];
  if (low - b->start < b->size && high - b->start <= b->size) return b;
  for (int k = 0; k < m->buffer_count; k++) {
    b = &m->buffers[k];
    if (low - b->start < b->size && high - b->start <= b->size) { m->last_buffer = k; return b; }
  }
  return 0;
}
/* one buffer for all lanes of `mask`, or null where they lie in several or outside */
static Buffer *find_all(Machine *m, const u64 *address, u64 mask, int width) {
  u64 low = ~0ull, high = 0;
  for (int l = 0; l < LANES; l++) {
    u64 on = -(u64)(mask >> l & 1), a = address[l];
    u64 lo = a | ~on, hi = a & on;
    low = lo < low ? lo : low;
    high = hi > high ? hi : high;
  }
  return find(m, low, high + (u64)width);
}
static void preserve(Buffer *b) {
  if (b->saved) return;
  memcpy(b->kept, b->data, b->padded);
  if (b->written) memcpy(b->kept_written, b->written, b->padded);
  b->saved = 1;
}
static int addresses(Machine *m, Wave *w, const Ins *i, u64 *out, u64 *mask, int width) {
  const i32 *p = i->p;
  const u32 *v = w->V + p[1] * LANES;
  *mask = w->exec;
  if (p[0] == SPACE_SADDR) {
    u64 base = pair_of(w, p[2]) + (u64)(i64)p[3];
    for (int l = 0; l < LANES; l++) out[l] = v[l] + base;
  } else if (p[0] == SPACE_PAIR) {
    const u32 *high = v + LANES;
    u64 delta = (u64)(i64)p[3];
    for (int l = 0; l < LANES; l++) out[l] = (v[l] | (u64)high[l] << 32) + delta;
  } else {
    int desc = p[2], offen = p[7] & 1, idxen = p[7] >> 1 & 1;
    u32 flags = w->S[desc + 3];
    if (flags & ADD_TID || w->S[desc + 1] >> 31) return REFUSED;
    u64 base = pair_of(w, desc) & 0xffffffffffffull;
    i64 stride = w->S[desc + 1] >> 16 & 0x3fff, records = w->S[desc + 2], extra = scalar_word(m, w, &i->w[0]);
    const u32 *o = v + (idxen ? LANES : 0);
    u64 inside = 0;
    for (int l = 0; l < LANES; l++) {
      i64 offset = (offen ? (i64)o[l] : 0) + p[3];
      int ok = idxen ? (i64)v[l] < records : offset + width - 1 < records - extra;
      offset += idxen ? (i64)v[l] * stride : 0;
      out[l] = (u64)offset + base + (u64)extra;
      inside |= (u64)ok << l;
    }
    *mask &= inside;
  }
  return 0;
}
static int aligned(const u64 *address, u64 mask, int width) {
  u64 low = 0;
  for (int l = 0; l < LANES; l++) low |= mask >> l & 1 ? address[l] : 0;
  return !(low & (u64)((width < 4 ? width : 4) - 1));
}
/* distinct 64-byte lines of a full wave, on a sample of the executions as in the NumPy tier */
static void count_lines(Machine *m, const Ins *i, const u64 *address, u64 mask) {
  Stats *t = &m->stats[i - m->code];
  if (mask != ~0ull) return;
  t->executions++;
  if (t->executions > 2 && (t->executions & 63)) return;
  int distinct = 0;
  for (int l = 0; l < LANES; l++) {
    int seen = 0;
    for (int k = 0; k < l && !seen; k++) seen = address[k] >> 6 == address[l] >> 6;
    distinct += !seen;
  }
  t->lines += distinct;
  t->line_samples += 1;
}
INLINE u32 narrow(u32 v, int width, int flags) {
  if (width == 1) return flags & 1 ? (u32)(i32)(i8)v : v & 255;
  return width == 2 ? (flags & 1 ? (u32)(i32)(i16)v : v & 0xffff) : v;
}
/* bind what a load returned: registers from `row`, lanes of EXEC; `stale` lanes hold values never written */
static void bind_loaded(Machine *m, Wave *w, int row, u32 (*value)[LANES], int width, int flags, u64 stale) {
  int count = width < 4 ? 1 : width / 4;
  u32 field = flags & 2 ? (flags & 4 ? 0xffff0000u : 0xffffu) : ~0u;
  for (int k = 0; k < count; k++) {
    u32 *v = w->V + (row + k) * LANES;
    if (width < 4) for (int l = 0; l < LANES; l++) value[k][l] = narrow(value[k][l], width, flags);
    if (flags & 2)
      for (int l = 0; l < LANES; l++)
        value[k][l] = (flags & 4 ? value[k][l] << 16 : value[k][l] & 0xffff) | (v[l] & ~field);
    write_row(w, row + k, value[k]);
    int reg = set_of_row(m, row + k);
    if (stale) {
      u32 bits[LANES];
      for (int l = 0; l < LANES; l++) bits[l] = -(u32)(stale >> l & 1);
      stain_row(m, w, reg, bits, field);
    } else if (in_set(w->stale, reg)) stain_row(m, w, reg, 0, field);
  }
}
static __attribute__((noinline)) int load(Machine *m, Wave *w, const Ins *i) {
  u64 at[LANES], mask, stale = 0;
  u32 value[4][LANES] __attribute__((aligned(64)));
  int width = i->p[5], flags = i->p[6], count = width < 4 ? 1 : width / 4;
  int bad = addresses(m, w, i, at, &mask, width);
  if (bad) return bad;
  if (mask) {
    Buffer *b = find_all(m, at, mask, width);
    if (!aligned(at, mask, width)) return MISALIGNED;
    if (mask != ~0ull) memset(value, 0, 4 * LANES * (u32)count);
    int plain = mask == ~0ull && b && width >= 4 && !(b->written && m->check_unwritten);
    if (plain) for (int k = 0; k < count; k++) {  /* all lanes in one buffer: the usual case */
      const u8 *base = b->data + 4 * k - b->start;
      for (int l = 0; l < LANES; l++) __builtin_memcpy(&value[k][l], base + at[l], 4);
    }
    for (int l = 0; l < LANES && !plain; l++) {
      if (!(mask >> l & 1)) continue;
      Buffer *own = b ? b : find(m, at[l], at[l] + (u64)width);
      if (!own) return OUT_OF_BOUNDS;
      const u8 *from = own->data + (at[l] - own->start);
      if (width == 4) { __builtin_memcpy(&value[0][l], from, 4); }
      else if (width > 4) for (int k = 0; k < count; k++) __builtin_memcpy(&value[k][l], from + 4 * k, 4);
      else value[0][l] = width == 1 ? from[0] : (u32)(from[0] | from[1] << 8);
      if (own->written && m->check_unwritten) {
        const u8 *known = own->written + (at[l] - own->start);
        int all = 1;
        for (int k = 0; k < width; k++) all &= known[k];
        stale |= (u64)!all << l;
      }
    }
  } else memset(value, 0, sizeof value);
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(mask) * (u64)width;
  count_lines(m, i, at, mask);
  bind_loaded(m, w, i->p[4], value, width, flags, stale);
  if (i->tag == TAG_FLAT) { bad = issue(m, w, i, 1, TAG_FLAT, 1); if (bad) return bad; }
  return issue(m, w, i, 0, i->tag == TAG_FLAT ? TAG_FLAT : TAG_LOAD, 1);
}
static u64 stale_data(Machine *m, Wave *w, int row, int width, int shift) {
  u64 out = 0;
  u32 field = width >= 4 ? ~0u : ((1u << 8 * width) - 1) << shift;
  for (int k = 0; k < (width < 4 ? 1 : width / 4); k++) {
    if (!in_set(w->stale, set_of_row(m, row + k))) continue;
    const u32 *p = w->P + (row + k) * LANES;
    for (int l = 0; l < LANES; l++) out |= (u64)((p[l] & field) != 0) << l;
  }
  return out;
}
INLINE void put_lane(u8 *to, const u32 *data, int l, int width, int shift) {
  if (width >= 4) for (int k = 0; k < width / 4; k++) __builtin_memcpy(to + 4 * k, data + k * LANES + l, 4);
  else { u32 v = data[l] >> shift; to[0] = (u8)v; if (width == 2) to[1] = (u8)(v >> 8); }
}
static __attribute__((noinline)) int store(Machine *m, Wave *w, const Ins *i) {
  u64 at[LANES], mask;
  int width = i->p[5], shift = i->p[6], bad = addresses(m, w, i, at, &mask, width);
  if (bad) return bad;
  if (stale_data(m, w, i->p[4], width, shift) & mask) return UNWRITTEN;
  if (mask) {
    Buffer *b = find_all(m, at, mask, width);
    if (!aligned(at, mask, width)) return MISALIGNED;
    if (b && b->read_only) return OUT_OF_BOUNDS;
    int plain = mask == ~0ull && b && width >= 4;
    if (plain) {
      preserve(b);
      for (int l = 0; l < LANES; l++) {
        u64 place = at[l] - b->start;
        for (int k = 0; k < width / 4; k++) {
          __builtin_memcpy(b->data + place + 4 * k, w->V + (i->p[4] + k) * LANES + l, 4);
          if (b->written) __builtin_memcpy(b->written + place + 4 * k, "\1\1\1\1", 4);
        }
      }
    }
    for (int l = 0; l < LANES && !plain; l++) {
      if (!(mask >> l & 1)) continue;
      Buffer *own = b ? b : find(m, at[l], at[l] + (u64)width);
      if (!own || own->read_only) return OUT_OF_BOUNDS;
      preserve(own);
      put_lane(own->data + (at[l] - own->start), w->V + i->p[4] * LANES, l, width, shift);
      if (own->written) memset(own->written + (at[l] - own->start), 1, (u32)width);
    }
  }
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(mask) * (u64)width;
  count_lines(m, i, at, mask);
  if (i->tag == TAG_FLAT) { bad = issue(m, w, i, 1, TAG_FLAT, 0); if (bad) return bad; }
  return issue(m, w, i, 0, i->tag == TAG_FLAT ? TAG_FLAT : TAG_STORE, 0);
}
static __attribute__((noinline)) int scalar_load(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* target, base, count, offset, is a buffer, bit k: operand k is a signed constant */
  u64 base = pair_of(w, p[1]);
  i64 delta = p[3];
  for (int k = 0; k < i->words; k++) {
    u32 v = scalar_word(m, w, &i->w[k]);
    delta += p[5] >> k & 1 ? (i64)(i32)v : (i64)v;
  }
  int zero = 0;
  if (p[4]) { base &= 0xffffffffffffull; zero = delta + 4 * p[2] > (i64)w->S[p[1] + 2]; }
  u64 at = (base + (u64)delta) & ~3ull;
  u32 value[16];
  for (int k = 0; k < p[2]; k++) {
    u32 stale = 0;
    value[k] = 0;
    if (!zero) {
      Buffer *b = find(m, at + 4u * (u32)k, at + 4u * (u32)k + 4);
      if (!b) return OUT_OF_BOUNDS;
      u64 place = at + 4u * (u32)k - b->start;
      __builtin_memcpy(&value[k], b->data + place, 4);
      if (b->written && m->check_unwritten) {
        u32 known;
        __builtin_memcpy(&known, b->written + place, 4);
        stale = known == 0x01010101u ? 0 : ~0u;
      }
    }
    if (stale || in_set(w->stale, SCALARS + p[0] + k)) stain_scalar(w, SCALARS + p[0] + k, stale);
  }
  for (int k = 0; k < p[2]; k++) w->S[p[0] + k] = value[k];
  m->stats[i - m->code].bytes += 4u * (u32)p[2];
  return issue(m, w, i, 1, TAG_SMEM, 1);
}
