// <stddef.h> for NVRTC, which has no host library: kvc_hip_cuda.h has it all.
#pragma once
#include "../../kvc_hip_cuda.h"
