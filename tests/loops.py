"""Loops that tests share, by name: what recurrences look like in index notation."""

# ruff: noqa: E501 - a statement of .kir is one line

LOOPS = {
    "lstm": """kernel lstm(gx: f32[t=7,b=3,g=4,n=20], w: f32[g,n,k=20], h0: f32[b,n], c0: f32[b,n]) -> (h: f32[t,b,n], c: f32[t,b,n]) {
  loop t {
    z: f32[t,b,g,n] = sum(k) h[t - 1,b,k | h0[b,k]] * w[g,n,k]
    i: f32[t,b,n] = sigmoid(gx[t,b,0,n] + z[t,b,0,n])
    c[t,b,n] = sigmoid(gx[t,b,1,n] + z[t,b,1,n]) * c[t - 1,b,n | c0[b,n]] + i[t,b,n] * tanh(gx[t,b,2,n] + z[t,b,2,n])
    h[t,b,n] = sigmoid(gx[t,b,3,n] + z[t,b,3,n]) * tanh(c[t,b,n])
  }
}""",
    # Deep sums, which lanes share, and a state read at its own point beside.
    "gru": """kernel gru(gx: f32[t=4,b=3,g=3,n=70], w: f32[g,n,k=70], v: f32[g,n], h0: f32[b,n]) -> (h: f32[t,b,n]) {
  loop t {
    z: f32[t,b,g,n] = sum(k) h[t - 1,b,k | h0[b,k]] * w[g,n,k]
    u: f32[t,b,n] = sigmoid(gx[t,b,1,n] + z[t,b,1,n] + v[1,n])
    r: f32[t,b,n] = sigmoid(gx[t,b,0,n] + z[t,b,0,n] + v[0,n])
    c: f32[t,b,n] = tanh(gx[t,b,2,n] + r[t,b,n] * (z[t,b,2,n] + v[2,n]))
    h[t,b,n] = c[t,b,n] + u[t,b,n] * (h[t - 1,b,n | h0[b,n]] - c[t,b,n])
  }
}""",
    # Backwards, in bf16, and the whole step one phase.
    "rnn_reverse": """kernel rnn_reverse(x: bf16[b=2,t=5,n=150], w: bf16[n,k=150]) -> (h: bf16[b,t,n]) {
  loop t reverse {
    z: f32[b,t,n] = sum(k) h[b,t + 1,k | 0.0] * w[n,k]
    h[b,t,n] = tanh(x[b,t,n] + z[b,t,n])
  }
}""",
    # Every point by itself.
    "decay": """kernel decay(x: f32[t=9,b=3,n=70], a: f32[n], h0: f32[b,n]) -> (h: f32[t,b,n]) {
  loop t {
    h[t,b,n] = a[n] * h[t - 1,b,n | h0[b,n]] + x[t,b,n]
  }
}""",
    # A state space: a matrix as state, read by a sum.
    "ssm": """kernel ssm(x: f32[t=5,b=2,p=3], a: f32[t,b], u: f32[t,b,n=7], v: f32[t,b,n]) -> (y: f32[t,b,p]) {
  loop t {
    s: f32[t,b,p,n] = exp(a[t,b]) * s[t - 1,b,p,n | 0.0] + u[t,b,n] * x[t,b,p]
    y[t,b,p] = sum(n) v[t,b,n] * s[t,b,p,n]
  }
}""",
    # Reads of a statement that stands later in the loop, with initial values that differ between reads.
    "crossed": """kernel crossed(x: f32[t=8,n=5], y: f32[t,n]) -> (a: f32[t,n], b: f32[t,n]) {
  loop t {
    a[t,n] = b[t - 1,n | x[0,n] * 2.0] + x[t,n]
    b[t,n] = a[t - 1,n | y[1,n]] * b[t - 1,n | 0.5] + a[t,n]
  }
}""",
    # The step before at other points than a thread's own.
    "turned": """kernel turned(x: f32[t=6,n=9], q: f32[n]) -> (s: f32[t,n], m: f32[t]) {
  loop t {
    s[t,n] = s[t - 1,n * -1 + 8 | q[n]] * 0.5 + x[t,n]
    m[t] = max(k=9) s[t,k] + m[t - 1 | 0.0]
  }
}""",
    # Work before, after and between.
    "around": """kernel around(x: f32[t=6,n=9]) -> (y: f32[n]) {
  g: f32[t,n] = exp(x[t,n])
  loop t {
    s: f32[t,n] = s[t - 1,n | 0.0] * 0.5 + g[t,n]
    c: f32[t] = max(k=9) s[t,k]
  }
  y[n] = sum(t) s[t,n] * c[t]
}""",
    "one_step": """kernel one_step(x: f32[t=1,b=2,n=5], w: f32[n,k=5], h0: f32[b,n]) -> (h: f32[t,b,n]) {
  loop t {
    z: f32[t,b,n] = sum(k) h[t - 1,b,k | h0[b,k]] * w[n,k]
    h[t,b,n] = tanh(x[0,b,n] + z[0,b,n])
  }
}""",
}
