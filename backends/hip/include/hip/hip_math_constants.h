// Stands in for HIP's <hip/hip_math_constants.h> (math constants) where no ROCm is installed.
#pragma once
#include "../kvc_hip_device.h"
