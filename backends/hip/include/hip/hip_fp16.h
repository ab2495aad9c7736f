// Stands in for HIP's <hip/hip_fp16.h> (half) where no ROCm is installed.
#pragma once
#include "../kvc_hip_half.h"
